"""A fuzzer: calls drawn at random, each compared with an oracle that shares no code with the engines.

    python -m tests.fuzz --seconds 60 --seed 1 --engine compiled

draws a call (operation, options, dtype, extents, memory order, algorithm, ``out=``, ``workspace=``, forward or
gradient), makes it in a worker process, and holds the results to the float64 oracles of ``tests/oracles``. Every call
has an ID, ``seed:index``, which draws the same call again:

    python -m tests.fuzz --engine compiled --replay 1:4711

========= ==============================================================================================================
module    holds
========= ==============================================================================================================
drawer    random extents, options and values
draw      a table of drawers for each family of operations
memory    arrays in guarded memory of any order, alignment and direction, on the host or a card
calls     what a call is, and how one is drawn from its ID
oracle    the expected results and gradients, and how far rounding may move them
judge     makes a call and says what came of it
snippet   a failing call made simpler, and as Python text
workers   processes that make calls, restarted where one dies
========= ==============================================================================================================
"""
