-- A number of blocks of a table, one after the other, past the buffers: as many waits for DataFileRead.
\set b random(0, 16000)
SELECT pg_prewarm('pgbench_accounts', 'read', 'main', :b::int, :b::int + :reads::int - 1);
