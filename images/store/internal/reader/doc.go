// Package reader reads images from registries, OCI layouts and docker archives.
// It also writes docker archives.
//
// Images are hostile input: see docs/design/mounts.md#unpacking-layers.
package reader
