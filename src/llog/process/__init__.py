"""One broker process: the stores, the broker and its front ends, from start to a graceful stop."""
