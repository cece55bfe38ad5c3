"""What needs a weighing and a seeing at once: labels of flame graphs, reasons, a study's graphs."""
