package main

func sameFileSystem(string, string) bool { return false }

func takeOwner(string, string) error { return nil }
