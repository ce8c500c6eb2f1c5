"""Lingvo's Params as trees and texts: values, overrides, shrinking."""
