"""The system's own figures: counters, CPU time, network state, the host snapshot."""
