// Package layer unpacks an image's layers into a directory and makes it a root
// filesystem for commands.
//
// Layers are hostile input: see docs/design/mounts.md#unpacking-layers.
package layer
