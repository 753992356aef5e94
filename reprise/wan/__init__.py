"""One set of Wan weights and its forwards; so far the dense one, with the text and the video path around it."""
