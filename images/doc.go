// Package images names root filesystems and describes how a backend mounts them.
//
// A [Reference] is parsed here. Package host resolves root filesystems that
// this machine already has: the image host and unpacked directories. Package
// store fetches, builds or unpacks all others and is a [Source].
package images
