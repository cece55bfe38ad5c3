"""Where the time goes: waits, traces, flame graphs, clocks and the doctor."""
