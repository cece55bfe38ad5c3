"""What needs both weighing and seeing: labels of flame graphs, reasons, the bill."""
