// Package store is a cache of images on disk. It finds images in an engine, a
// registry, an OCI layout, a docker archive or a build, keeps their blobs and
// unpacked root filesystems below one directory, and removes them again.
//
// It writes only below that directory, speaks to an engine only through
// [images.Engine], and runs no program except the builder that its options name
// and the credential helper of the user's Docker configuration. Registries,
// archives and layers are hostile input: see docs/design/mounts.md#unpacking-layers.
package store
