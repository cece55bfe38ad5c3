"""Tests. As several processes run them, each computes in one thread: more would spin and wait."""

from pgtare.interrupt import compute_in_one_thread

compute_in_one_thread()  # before anything loads numpy
