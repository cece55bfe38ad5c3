"""PostgreSQL installations, throwaway servers and the modules they load."""
