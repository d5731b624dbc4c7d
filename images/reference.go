package images

// Scheme is the kind of source that a [Reference] names.
type Scheme string

// The schemes, as they are written before the colon of a reference. A
// reference without one of these prefixes is an image name, resolved by the
// engine that the backend speaks to.
const (
	SchemeHost   Scheme = "host"   // host: the host's own /usr, read-only
	SchemeFolder Scheme = "rootfs" // rootfs:DIR: an unpacked root filesystem
	SchemeName   Scheme = "name"   // debian:bookworm-slim, name@sha256:…, sha256:…
)

// Reference names a root filesystem. The zero value is invalid; see
// [ParseReference].
type Reference struct {
	Scheme Scheme
	// Value is empty for host, an absolute cleaned folder for rootfs, the
	// image's name or ID otherwise.
	Value string
}
