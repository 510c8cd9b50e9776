# expect: output_limit
def add(a, b):
    cycle = []
    cycle.append(cycle)
    return cycle
