"""HTML pages in one file each: texts in two languages, templates, charts as SVG, a strict Content-Security-Policy."""
