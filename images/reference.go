package images

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
)

// Scheme is the kind of source that a [Reference] names.
type Scheme string

// The schemes, as written before a reference's colon. A reference without one
// is an image's name or ID.
const (
	SchemeHost   Scheme = "host"   // the host's own /usr, read-only
	SchemeRootFS Scheme = "rootfs" // rootfs:DIR: an unpacked root filesystem
	SchemeName   Scheme = "name"   // debian:bookworm-slim, name@sha256:…, sha256:…

	SchemeLayout  Scheme = "oci-layout"     // oci-layout:DIR, an OCI image layout
	SchemeArchive Scheme = "docker-archive" // docker-archive:FILE, the output of docker save
	SchemeBuild   Scheme = "build"          // build:DIR, the directory of a Dockerfile
)

// Reference names a root filesystem. The zero value is invalid; see
// [ParseReference].
type Reference struct {
	Scheme Scheme
	// Value is empty for host; for rootfs, oci-layout, docker-archive and build
	// an absolute, cleaned path, followed by any tag and digest; otherwise the
	// image's name or ID.
	Value string
}

// maxName bounds an image name: 255 for the repository, 128 for the tag, 71 for
// the digest (distribution/reference v0.6), and their separators.
const maxName = 456

// named matches an image name (registry and repository, tag, digest), or an
// image ID alone. The engine decides; this rejects names that could be read as
// an option or another source.
var named = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(?:sha256:[a-f0-9]{64}|[A-Za-z0-9][A-Za-z0-9._-]*(?::[0-9]{1,5})?(?:/[a-z0-9][a-z0-9._-]*)*(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(?:@sha256:[a-f0-9]{64})?)$`)
})

// digested and tagged match the end of an OCI layout's reference. A tag has no
// slash, so they never cut a path inside a directory's name.
var (
	digested = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`@(sha256:[a-f0-9]{64})$`)
	})
	tagged = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`:([A-Za-z0-9_][A-Za-z0-9._-]{0,127})$`)
	})
)

// ParseLocalReference is ParseReference, but DIR and FILE may be relative to
// the working directory.
func ParseLocalReference(text string) (Reference, error) {
	for _, scheme := range []Scheme{SchemeRootFS, SchemeLayout, SchemeArchive, SchemeBuild} {
		path, ok := strings.CutPrefix(text, string(scheme)+":")
		if !ok || path == "" || filepath.IsAbs(path) {
			continue
		}
		dir, err := os.Getwd()
		if err != nil {
			return Reference{}, err
		}
		// Don't clean it: what follows the path belongs to the reference.
		text = string(scheme) + ":" + dir + string(filepath.Separator) + path
	}
	return ParseReference(text)
}

// ParseReference parses a reference:
//
//	host                                 the host's own programs
//	rootfs:DIR                           an unpacked root filesystem
//	oci-layout:DIR[:TAG][@DIGEST]        an image of an OCI image layout
//	docker-archive:FILE[@DIGEST]         the output of docker save
//	build:DIR                            the directory of a Dockerfile
//	debian:bookworm-slim, name@DIGEST    an image's name
//	DIGEST                               the id of an image in the engine
//
// DIR and FILE must be absolute. DIGEST is sha256: and 64 hex digits: the
// manifest's or index's in a layout, the configuration's in an archive. TAG is
// the annotation org.opencontainers.image.ref.name. If a layout's directory
// name has a colon in its last element, add a slash. Errors wrap [ErrInvalid].
func ParseReference(text string) (Reference, error) {
	scheme, rest, _ := strings.Cut(text, ":")
	switch Scheme(scheme) {
	case SchemeHost:
		if text == string(SchemeHost) {
			return Reference{Scheme: SchemeHost}, nil
		}
		return Reference{}, fmt.Errorf("%w %q: want host alone", ErrInvalid, text)
	case SchemeRootFS, SchemeLayout, SchemeArchive, SchemeBuild:
		return parsePath(Scheme(scheme), rest)
	}
	switch {
	case text == "":
		return Reference{}, fmt.Errorf("%w: empty reference: want host, rootfs:DIR or an image's name", ErrInvalid)
	case len(text) > maxName:
		return Reference{}, fmt.Errorf("%w: reference of %d characters: want at most %d", ErrInvalid, len(text), maxName)
	case !named().MatchString(text):
		return Reference{}, fmt.Errorf("%w %q: want host, rootfs:DIR, oci-layout:DIR, docker-archive:FILE, build:DIR or an image's name such as debian:bookworm-slim",
			ErrInvalid, text)
	}
	return Reference{Scheme: SchemeName, Value: text}, nil
}

func parsePath(scheme Scheme, text string) (Reference, error) {
	p, end := splitPath(scheme, text)
	switch {
	case !filepath.IsAbs(p):
		return Reference{}, fmt.Errorf("%w %s:%q: want an absolute path", ErrInvalid, scheme, p)
	case strings.ContainsRune(p, 0):
		return Reference{}, fmt.Errorf("%w %s:%q: path contains a NUL", ErrInvalid, scheme, p)
	}
	clean := filepath.Clean(p)
	if clean == string(filepath.Separator) {
		if scheme == SchemeRootFS {
			return Reference{}, fmt.Errorf("%w: rootfs:/ exposes the whole host: use host for its programs alone", ErrInvalid)
		}
		return Reference{}, fmt.Errorf("%w: %s:/ is the root of this machine", ErrInvalid, scheme)
	}
	if scheme == SchemeLayout && end == "" && tagged().MatchString(clean) {
		clean += "/" // otherwise it would be parsed as a tag
	}
	return Reference{Scheme: scheme, Value: clean + end}, nil
}

func splitPath(scheme Scheme, text string) (p, end string) {
	p = text
	if scheme == SchemeLayout || scheme == SchemeArchive {
		p = digested().ReplaceAllString(p, "")
	}
	if scheme == SchemeLayout {
		p = tagged().ReplaceAllString(p, "")
	}
	return p, text[len(p):]
}

// Path returns the reference's directory or file without tag and digest, or ""
// for host and an image's name.
func (r Reference) Path() string {
	if r.Scheme == SchemeHost || r.Scheme == SchemeName {
		return ""
	}
	p, _ := splitPath(r.Scheme, r.Value)
	return filepath.Clean(p)
}

// Tag returns the tag of an OCI layout, or "".
func (r Reference) Tag() string {
	if r.Scheme != SchemeLayout {
		return ""
	}
	if found := tagged().FindStringSubmatch(digested().ReplaceAllString(r.Value, "")); found != nil {
		return found[1]
	}
	return ""
}

// Digest returns the digest at the end of the reference, or "". The content
// must match it.
func (r Reference) Digest() string {
	if r.Scheme != SchemeName && r.Scheme != SchemeLayout && r.Scheme != SchemeArchive {
		return ""
	}
	if found := digested().FindStringSubmatch(r.Value); found != nil {
		return found[1]
	}
	return ""
}

// String returns the form that [ParseReference] parses.
func (r Reference) String() string {
	switch r.Scheme {
	case SchemeHost:
		return string(SchemeHost)
	case SchemeRootFS, SchemeLayout, SchemeArchive, SchemeBuild:
		return string(r.Scheme) + ":" + r.Value
	}
	return r.Value
}
