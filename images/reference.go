package images

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
)

// Scheme is the kind of source that a [Reference] names.
type Scheme string

// The schemes, as they are written before the colon of a reference. A
// reference without one of these prefixes is an image name, resolved by the
// engine that the backend speaks to.
const (
	SchemeHost   Scheme = "host"   // host: the host's own /usr, read-only
	SchemeFolder Scheme = "rootfs" // rootfs:DIR: an unpacked root filesystem
	SchemeName   Scheme = "name"   // debian:bookworm-slim, name@sha256:…, sha256:…

	SchemeLayout  Scheme = "oci-layout"     // oci-layout:DIR, an OCI image layout
	SchemeArchive Scheme = "docker-archive" // docker-archive:FILE, what docker save writes
	SchemeBuild   Scheme = "build"          // build:DIR, a Dockerfile's folder
)

// Reference names a root filesystem. The zero value is invalid; see
// [ParseReference].
type Reference struct {
	Scheme Scheme
	// Value is empty for host, an absolute cleaned folder for rootfs, the
	// image's name or ID otherwise.
	Value string
}

// The classes of an error of this package; test with errors.Is.
var (
	// ErrInvalid: a reference that is not written as one.
	ErrInvalid = errors.New("invalid image reference")
	// ErrUnsupported: a source that this version, or this system, can't use.
	ErrUnsupported = errors.New("unsupported image source")
	// ErrNotFound: a folder that is not there.
	ErrNotFound = errors.New("image not found")
)

// maxName bounds an image name: 255 for the repository, 128 for the tag, 71
// for the digest (distribution/reference v0.6), and their separators.
const maxName = 456

// named is the shape of an image name: registry and repository in path parts,
// then a tag, then a digest, or an image ID alone. The engine has the last
// word; this keeps out what could be read as an option or as another source.
var named = regexp.MustCompile(`^(?:sha256:[a-f0-9]{64}|[A-Za-z0-9][A-Za-z0-9._-]*(?::[0-9]{1,5})?(?:/[a-z0-9][a-z0-9._-]*)*(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(?:@sha256:[a-f0-9]{64})?)$`)

// later holds the prefixes of sources that are planned and not here: they must
// not be taken for image names.
var later = []string{"oci-layout:", "docker-archive:", "build:"}

// ParseReference reads a reference: "host", "rootfs:DIR", or an image's name
// or ID. DIR must be absolute; what a relative one is relative to is the
// caller's to say. Errors wrap [ErrInvalid] or [ErrUnsupported].
func ParseReference(text string) (Reference, error) {
	if text == string(SchemeHost) {
		return Reference{Scheme: SchemeHost}, nil
	}
	for _, p := range later {
		if strings.HasPrefix(text, p) {
			return Reference{}, fmt.Errorf("%w: %s is not supported by this version: use host, rootfs:DIR or the name of an image that the engine has",
				ErrUnsupported, strings.TrimSuffix(p, ":"))
		}
	}
	if dir, ok := strings.CutPrefix(text, string(SchemeFolder)+":"); ok {
		return parseFolder(dir)
	}
	switch {
	case text == "":
		return Reference{}, fmt.Errorf("%w: it is empty: use host, rootfs:DIR or an image's name", ErrInvalid)
	case len(text) > maxName:
		return Reference{}, fmt.Errorf("%w: %d characters, at most %d", ErrInvalid, len(text), maxName)
	case !named.MatchString(text):
		return Reference{}, fmt.Errorf("%w %q: use host, rootfs:DIR or an image's name such as debian:bookworm-slim", ErrInvalid, text)
	}
	return Reference{Scheme: SchemeName, Value: text}, nil
}

func parseFolder(dir string) (Reference, error) {
	switch {
	case !filepath.IsAbs(dir):
		return Reference{}, fmt.Errorf("%w: rootfs:%q: the folder must be an absolute path", ErrInvalid, dir)
	case strings.ContainsRune(dir, 0):
		return Reference{}, fmt.Errorf("%w: rootfs:%q: the path holds a NUL", ErrInvalid, dir)
	}
	clean := filepath.Clean(dir)
	if clean == string(filepath.Separator) {
		return Reference{}, fmt.Errorf("%w: rootfs:/ would show the whole host: use host for its programs alone", ErrInvalid)
	}
	return Reference{Scheme: SchemeFolder, Value: clean}, nil
}

// String is what [ParseReference] reads.
func (r Reference) String() string {
	switch r.Scheme {
	case SchemeHost:
		return string(SchemeHost)
	case SchemeFolder:
		return string(SchemeFolder) + ":" + r.Value
	}
	return r.Value
}
