"""What the plans of several families share: launches of ``kernels/common``, each in the module of its kernel's name,
and arrays seen by channels."""
