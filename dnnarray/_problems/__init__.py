"""Problems: one frozen object per call that fixes every shape rule, dtype rule and error of a family, decided once.

Nothing here touches data. Both engines and the selection read the same objects.
"""
