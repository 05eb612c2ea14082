"""Tables, figures and claims of papers, made again: the paper's number beside ours."""
