"""The scale: weighs instruments on a load by randomising per transaction inside the server."""
