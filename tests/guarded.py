"""Memory beside pages that must not be touched: reading or writing one byte too far ends the process."""

import ctypes
import mmap

import numpy as np

_PAGE = mmap.PAGESIZE
_NO_ACCESS = 0
_LIBC = ctypes.CDLL(None, use_errno=True)


def beside_a_page(size, at_end):
    """So many bytes, writable, that end at a page which must not be touched, or begin behind one."""
    pages = -(-size // _PAGE)
    memory = mmap.mmap(-1, (pages + 2) * _PAGE)  # unmapped with the last array on it
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for page in (0, pages + 1):
        if _LIBC.mprotect(ctypes.c_void_p(start + page * _PAGE), ctypes.c_size_t(_PAGE), _NO_ACCESS):
            raise OSError(ctypes.get_errno(), "this system does not protect pages")
    return np.frombuffer(memory, np.uint8, size, (pages + 1) * _PAGE - size if at_end else _PAGE)


def like(array, at_end):
    """A copy of a C-contiguous array that ends, or begins, at such a page."""
    placed = beside_a_page(array.nbytes, at_end).view(array.dtype).reshape(array.shape)
    placed[...] = array
    return placed
