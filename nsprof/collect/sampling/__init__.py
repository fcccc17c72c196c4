"""The sampler: stacks by timer, counted in the kernel; and perf underneath where BPF is not to be had."""
