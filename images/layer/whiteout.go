package layer

import (
	"fmt"
	"strings"
)

// maxComponent is the length of one name (Linux NAME_MAX).
const maxComponent = 255

// The names of whiteouts (OCI image-spec v1.1, layer.md), and the prefix of
// AUFS's own metadata, which every unpacker skips.
const (
	whiteoutPrefix = ".wh."
	opaqueMarker   = ".wh..wh..opq"
	aufsPrefix     = ".wh..wh."
)

// splitName splits an archive's name into components. An absolute name starts
// at the image's root. An empty list is the root itself. The reason is empty if
// the name is valid.
func splitName(name string, limits Limits) (parts []string, reason string) {
	switch {
	case len(name) > limits.PathBytes:
		return nil, fmt.Sprintf("a name of %d bytes: want at most %d", len(name), limits.PathBytes)
	case strings.ContainsRune(name, 0):
		return nil, "a name containing a NUL"
	}
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "" || part == ".":
			continue
		case part == "..":
			return nil, "a name that goes up"
		case len(part) > maxComponent:
			return nil, fmt.Sprintf("a component of %d bytes: want at most %d", len(part), maxComponent)
		}
		parts = append(parts, part)
	}
	if len(parts) > limits.Depth {
		return nil, fmt.Sprintf("%d components: want at most %d", len(parts), limits.Depth)
	}
	return parts, ""
}

// whiteoutKind is the meaning of an entry's name.
type whiteoutKind int

const (
	noWhiteout      whiteoutKind = iota
	aufsMetadata                 // skipped
	opaqueDirectory              // the directory loses its entries of lower layers
	removedEntry                 // the named entry of lower layers is removed
)

// parseWhiteout parses an entry's name. hidden is the name that a removedEntry
// removes.
func parseWhiteout(parts []string) (m whiteoutKind, hidden, reason string) {
	for i, part := range parts {
		last := i == len(parts)-1
		switch {
		case last && part == opaqueMarker:
			return opaqueDirectory, "", ""
		case strings.HasPrefix(part, aufsPrefix):
			return aufsMetadata, "", ""
		case !strings.HasPrefix(part, whiteoutPrefix):
			continue
		case !last:
			return noWhiteout, "", "a directory named like a whiteout"
		}
		hidden = strings.TrimPrefix(part, whiteoutPrefix)
		if hidden == "" || hidden == "." || hidden == ".." {
			return noWhiteout, "", "a whiteout of nothing"
		}
		return removedEntry, hidden, ""
	}
	return noWhiteout, "", ""
}
