// Package layer unpacks the layers of an image into a directory and finishes it
// as a root filesystem for commands.
//
// Layers are hostile input: see docs/design/mounts.md#unpacking-layers.
package layer
