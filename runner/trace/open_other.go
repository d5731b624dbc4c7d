//go:build !unix

package trace

const nonblock = 0
