//go:build !linux

package ownership

// tidySessionDir does nothing: there are no sockets for commands on other
// systems.
func tidySessionDir(string, string, bool) error { return nil }
