//go:build !linux

package main

func kernelFeatures() []feature { return nil }
