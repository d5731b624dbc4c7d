//go:build !linux

package lifecycle

// identifyFile identifies nothing.
func identifyFile(string) (fileIdentity, bool) { return fileIdentity{}, false }
