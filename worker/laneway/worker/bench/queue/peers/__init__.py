"""One module per queue, run as a process: once as its worker, once as its producer. Each does nothing with a job."""
