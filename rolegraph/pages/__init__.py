"""Pages and pictures for people: report, viewer, drawing, previews."""
