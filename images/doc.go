// Package images names root filesystems and describes how a backend mounts them.
//
// A [Reference] is parsed here. Package host resolves the two kinds that are on
// this machine already, the image host and unpacked directories; package store
// fetches, builds or unpacks all others and is a [Source].
package images
