"""The mechanism below the plans: kernels, launches, scratch memory, the device. Nothing in it knows a family of
operations."""
