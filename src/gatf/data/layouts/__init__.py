"""How data sets lie on disk: each module lists one layout's images and labels, and decodes nothing."""
