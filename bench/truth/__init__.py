"""The ground truth of wait timing: the waits of a server as processor and kernel see them."""
