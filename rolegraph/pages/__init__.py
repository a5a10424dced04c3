"""HTML pages and pictures: reports, the viewer, drawings, previews."""
