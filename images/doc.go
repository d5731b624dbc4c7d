// Package images turns a reference to a root filesystem into what a backend
// can mount, and names its content by digest.
//
// It is a leaf (rank 0). It reads image content and writes only below the
// cache folder that it is given; it never talks to an engine and never runs a
// program.
package images
