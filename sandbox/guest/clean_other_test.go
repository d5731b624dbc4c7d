//go:build !linux

package guest_test

// clean has nothing to clean where no guest can run.
func clean() {}
