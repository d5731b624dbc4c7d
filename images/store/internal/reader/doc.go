// Package reader reads images where they are: in registries, OCI layouts and
// docker archives. It also writes docker archives.
//
// What it reads is hostile: see docs/design/mounts.md#unpacking-layers.
package reader
