def search_large(problem, sizes, stop):
    raise NotImplementedError
