"""Recording a trace: sessions are traced, their rings are drained."""
