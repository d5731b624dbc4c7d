// Package store is a cache of images on disk. It finds images in an engine, a
// registry, an OCI layout, a docker archive or a build, and keeps their blobs
// and unpacked root filesystems below one directory.
//
// It writes only below that directory, speaks to an engine only through
// [images.Engine], and runs only the builder that its options name and the
// credential helper in the user's Docker configuration. Registries, archives
// and layers are hostile input: see docs/design/mounts.md#unpacking-layers.
package store
