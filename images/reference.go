package images

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
)

// Scheme is the kind of source that a [Reference] names.
type Scheme string

// The schemes, as they are written before the colon of a reference. A
// reference without one of these prefixes is an image's name or id.
const (
	SchemeHost   Scheme = "host"   // host: the host's own /usr, read-only
	SchemeRootFS Scheme = "rootfs" // rootfs:DIR: an unpacked root filesystem
	SchemeName   Scheme = "name"   // debian:bookworm-slim, name@sha256:…, sha256:…

	SchemeLayout  Scheme = "oci-layout"     // oci-layout:DIR, an OCI image layout
	SchemeArchive Scheme = "docker-archive" // docker-archive:FILE, what docker save writes
	SchemeBuild   Scheme = "build"          // build:DIR, a Dockerfile's folder
)

// Reference names a root filesystem. The zero value is invalid; see
// [ParseReference].
type Reference struct {
	Scheme Scheme
	// Value is empty for host, an absolute cleaned path for rootfs, oci-layout,
	// docker-archive and build, with tag and digest where there are some, the
	// image's name or ID otherwise.
	Value string
}

// maxName bounds an image name: 255 for the repository, 128 for the tag, 71
// for the digest (distribution/reference v0.6), and their separators.
const maxName = 456

// named is the shape of an image name: registry and repository in path parts,
// then a tag, then a digest, or an image ID alone. The engine has the last
// word; this keeps out what could be read as an option or as another source.
var named = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(?:sha256:[a-f0-9]{64}|[A-Za-z0-9][A-Za-z0-9._-]*(?::[0-9]{1,5})?(?:/[a-z0-9][a-z0-9._-]*)*(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(?:@sha256:[a-f0-9]{64})?)$`)
})

// digested and tagged are the ends of an OCI layout's reference. A tag holds no
// slash, so a folder's name is never cut in the middle of its path.
var (
	digested = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`@(sha256:[a-f0-9]{64})$`)
	})
	tagged = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`:([A-Za-z0-9_][A-Za-z0-9._-]{0,127})$`)
	})
)

// ParseReference reads a reference:
//
//	host                                 the host's own programs
//	rootfs:DIR                           an unpacked root filesystem
//	oci-layout:DIR[:TAG][@DIGEST]        an image of an OCI image layout
//	docker-archive:FILE[@DIGEST]         what docker save wrote
//	build:DIR                            the folder of a Dockerfile
//	debian:bookworm-slim, name@DIGEST    an image's name
//	DIGEST                               the id of an image that the engine has
//
// DIR and FILE must be absolute; what a relative one is relative to is the
// caller's to say. DIGEST is sha256: and 64 hex digits: of the manifest or index
// in a layout, of the configuration in an archive. TAG is the annotation
// org.opencontainers.image.ref.name. A layout's folder whose last name holds a
// colon is written with a slash at its end. Errors wrap [ErrInvalid].
func ParseReference(text string) (Reference, error) {
	scheme, rest, _ := strings.Cut(text, ":")
	switch Scheme(scheme) {
	case SchemeHost:
		if text == string(SchemeHost) {
			return Reference{Scheme: SchemeHost}, nil
		}
		return Reference{}, fmt.Errorf("%w %q: host takes nothing after its name", ErrInvalid, text)
	case SchemeRootFS, SchemeLayout, SchemeArchive, SchemeBuild:
		return parsePath(Scheme(scheme), rest)
	}
	switch {
	case text == "":
		return Reference{}, fmt.Errorf("%w: it is empty: use host, rootfs:DIR or an image's name", ErrInvalid)
	case len(text) > maxName:
		return Reference{}, fmt.Errorf("%w: %d characters, at most %d", ErrInvalid, len(text), maxName)
	case !named().MatchString(text):
		return Reference{}, fmt.Errorf("%w %q: use host, rootfs:DIR, oci-layout:DIR, docker-archive:FILE, build:DIR or an image's name such as debian:bookworm-slim",
			ErrInvalid, text)
	}
	return Reference{Scheme: SchemeName, Value: text}, nil
}

// parsePath reads what follows a scheme that names a path.
func parsePath(scheme Scheme, text string) (Reference, error) {
	p, end := splitPath(scheme, text)
	switch {
	case !filepath.IsAbs(p):
		return Reference{}, fmt.Errorf("%w: %s:%q: the path must be absolute", ErrInvalid, scheme, p)
	case strings.ContainsRune(p, 0):
		return Reference{}, fmt.Errorf("%w: %s:%q: the path holds a NUL", ErrInvalid, scheme, p)
	}
	clean := filepath.Clean(p)
	if clean == string(filepath.Separator) {
		if scheme == SchemeRootFS {
			return Reference{}, fmt.Errorf("%w: rootfs:/ would show the whole host: use host for its programs alone", ErrInvalid)
		}
		return Reference{}, fmt.Errorf("%w: %s:/ names the root of this machine", ErrInvalid, scheme)
	}
	if scheme == SchemeLayout && end == "" && tagged().MatchString(clean) {
		clean += "/" // so that it reads back as a folder, not as a tag
	}
	return Reference{Scheme: scheme, Value: clean + end}, nil
}

// splitPath parts the path from the tag and digest that may follow it.
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

// Path is the folder or file that the reference names, without tag and digest;
// empty for host and for an image's name.
func (r Reference) Path() string {
	if r.Scheme == SchemeHost || r.Scheme == SchemeName {
		return ""
	}
	p, _ := splitPath(r.Scheme, r.Value)
	return filepath.Clean(p)
}

// Tag is the tag that follows the path of an OCI layout, or empty.
func (r Reference) Tag() string {
	if r.Scheme != SchemeLayout {
		return ""
	}
	if found := tagged().FindStringSubmatch(digested().ReplaceAllString(r.Value, "")); found != nil {
		return found[1]
	}
	return ""
}

// Digest is the digest at the end of the reference, which its content must
// have; empty if there is none.
func (r Reference) Digest() string {
	if r.Scheme != SchemeName && r.Scheme != SchemeLayout && r.Scheme != SchemeArchive {
		return ""
	}
	if found := digested().FindStringSubmatch(r.Value); found != nil {
		return found[1]
	}
	return ""
}

// String is what [ParseReference] reads.
func (r Reference) String() string {
	switch r.Scheme {
	case SchemeHost:
		return string(SchemeHost)
	case SchemeRootFS, SchemeLayout, SchemeArchive, SchemeBuild:
		return string(r.Scheme) + ":" + r.Value
	}
	return r.Value
}
