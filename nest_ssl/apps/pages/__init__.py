"""HTML pages that need nothing but themselves: words in two languages, charts as SVG, a policy that lets nothing in."""
