"""File layouts of data sets: each module lists the images and labels of one layout, without decoding."""
