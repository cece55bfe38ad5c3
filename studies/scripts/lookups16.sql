-- Sixteen rows by their keys in one statement: sixteen index descents and as many heap pages.
\set a random(1, 100000 * :scale)
\set step 6121 * :scale
SELECT sum(abalance) FROM pgbench_accounts WHERE aid = ANY (ARRAY[
  1 + (:a + 0 * :step) % (100000 * :scale), 1 + (:a + 1 * :step) % (100000 * :scale),
  1 + (:a + 2 * :step) % (100000 * :scale), 1 + (:a + 3 * :step) % (100000 * :scale),
  1 + (:a + 4 * :step) % (100000 * :scale), 1 + (:a + 5 * :step) % (100000 * :scale),
  1 + (:a + 6 * :step) % (100000 * :scale), 1 + (:a + 7 * :step) % (100000 * :scale),
  1 + (:a + 8 * :step) % (100000 * :scale), 1 + (:a + 9 * :step) % (100000 * :scale),
  1 + (:a + 10 * :step) % (100000 * :scale), 1 + (:a + 11 * :step) % (100000 * :scale),
  1 + (:a + 12 * :step) % (100000 * :scale), 1 + (:a + 13 * :step) % (100000 * :scale),
  1 + (:a + 14 * :step) % (100000 * :scale), 1 + (:a + 15 * :step) % (100000 * :scale)
]::int[]);
