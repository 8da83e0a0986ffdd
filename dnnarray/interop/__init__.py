"""Doors to other libraries: PyTorch, JAX, HIPS autograd, scikit-learn, ONNX. Each module needs its library, and nothing
else imports them."""
