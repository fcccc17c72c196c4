"""The best rung on which a kernel lets a function be watched, and counting on it."""
